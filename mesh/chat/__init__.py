"""The chat in a terminal, and in a pipe.

words.py       what is safe and short to print            pure
transcript.py  events -> parts: what there is to print    pure
layout.py      parts -> styled text, line by line         pure
terminal.py    the port to who sits there
card.py        an approval, and the keys that decide it  pure
interactive.py   a person at a terminal
pipe.py          a program at a pipe
chat.py        turns, approvals, cancelling: between a mesh and a terminal
commands.py    what begins with a slash
embedded.py    a mesh of one's own, for as long as the chat lasts
"""
