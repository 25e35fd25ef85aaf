"""Floor 5: kits for testing layers, for this project and for others."""

from jaxbridge.testing.agreement import BackendsDisagree as BackendsDisagree
from jaxbridge.testing.agreement import assert_backends_agree as assert_backends_agree
