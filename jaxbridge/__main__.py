"""`python -m jaxbridge` is the command `jaxbridge`, where Keras can be imported; `python -m jaxbridge_cli` is it everywhere."""

import subprocess
import sys

# Another process: `import jaxbridge` has chosen Keras' backend here.
sys.exit(subprocess.call([sys.executable, "-m", "jaxbridge_cli", *sys.argv[1:]]))
