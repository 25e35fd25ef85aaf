"""The README's Python blocks run as they stand, in order and in one process, on the current backend."""

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def test_blocks(tmp_path):
    blocks = re.findall(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 6
    script = tmp_path / "readme.py"
    script.write_text(
        "".join(f"# block {number}\n{block}\n" for number, block in enumerate(blocks, 1)), encoding="utf-8"
    )
    result = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr[-3000:]


def test_files_that_it_links_to_exist():
    links = re.findall(r"\]\(([^)#:]+)\)", README.read_text(encoding="utf-8"))
    assert links and all((README.parent / link).exists() for link in links)
