"""Chat templates: render messages to a prompt with the model's Jinja template.

All engines share this renderer. A template is untrusted code, so it runs in a separate process, in jinja2's sandbox,
with limits of CPU time and memory that the operating system enforces. Standard library only.
"""

from backend.tasks.text.templates.control_tokens import ControlTokens
from backend.tasks.text.templates.environment import find_syntax_error
from backend.tasks.text.templates.renderer import CHATML, LIMIT_S, Renderer

__all__ = ["CHATML", "LIMIT_S", "ControlTokens", "Renderer", "find_syntax_error"]
