"""What works on this machine, what does not, and what to do about it: facts, findings made from them, one page.

`gather.py` collects facts and never fails because one cannot be had; `findings/` are functions from facts to sentences;
`report.py` puts both on a page without secrets; `page.py` writes it for people.
"""
