"""Chat templates: render messages to a prompt with the model's Jinja template.

All engines share this renderer. A template is untrusted code, so it runs in a separate process, in jinja2's sandbox,
with a CPU time limit that the operating system enforces. Standard library only.
"""

from backend.tasks.text.templates.control_tokens import ControlTokens
from backend.tasks.text.templates.renderer import CHATML, LIMIT_S, Renderer

__all__ = ["CHATML", "LIMIT_S", "ControlTokens", "Renderer"]
