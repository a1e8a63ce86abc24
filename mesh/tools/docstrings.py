"""What a docstring says about a function and its parameters, in the styles of Google, NumPy and Sphinx."""

from inspect import cleandoc

from docstring_parser import ParseError, parse


def read_docstring(docstring: str | None) -> tuple[str, dict[str, str]]:
    """Returns the description for the model, and that of each parameter.

    >>> read_docstring("Pays money back.\\n\\nArgs:\\n    order: Its number.")
    ('Pays money back.', {'order': 'Its number.'})
    """
    text = cleandoc(docstring or "")
    try:
        found = parse(text)
    except ParseError:  # it is in no style, and says all the same what the function does
        return text, {}
    parameters = {each.arg_name: each.description or "" for each in found.params}
    if not parameters:
        return text, {}
    returned = found.returns.description if found.returns else None
    parts = [found.description, f"Returns: {returned}" if returned else None]
    return "\n\n".join(part.strip() for part in parts if part), parameters
