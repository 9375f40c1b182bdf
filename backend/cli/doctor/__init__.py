"""The doctor: reports what works on this machine, what does not, and how to fix it.

`collector.py` collects facts; a fact that cannot be determined is left out. `findings/` has functions from facts to
findings. `report.py` makes one document of both, without secrets; `text_page.py` formats it as text.
"""
