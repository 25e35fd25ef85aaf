"""Floor 5: kits for testing layers, for this project and for others."""

from jaxbridge.testing.adapters import AdapterCase as AdapterCase
from jaxbridge.testing.adapters import LawBroken as LawBroken
from jaxbridge.testing.adapters import check_adapter as check_adapter
from jaxbridge.testing.agreement import BackendsDisagree as BackendsDisagree
from jaxbridge.testing.agreement import assert_backends_agree as assert_backends_agree
