"""Chat templates: from messages to the text that a model continues, by the model's own Jinja template.

The same renderer serves every engine. A template is a program from a stranger, so it runs in a process of its own, in
jinja2's sandbox, with a limit of time that no loop can beat. Standard library only.
"""

from backend.tasks.text.templates.control_tokens import Marks
from backend.tasks.text.templates.renderer import CHATML, LIMIT_S, Renderer

__all__ = ["CHATML", "LIMIT_S", "Marks", "Renderer"]
