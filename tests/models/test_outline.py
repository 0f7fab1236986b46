"""What a model would be like is found out without drawing its weights."""

import subprocess
import sys


def test_loading_a_captioner_loads_no_compiler():
    """torch's compiler takes longer to load than a captioner does, and drawing weights without memory asked for it."""
    script = "import sys, torch; from tellapart import models; models.load('plain', torch.device('cpu')); "
    script += "print('torch._dynamo' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
