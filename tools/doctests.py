# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Shows the doctests of docstrings as code; as Markdown, ``>>>`` would be quotations."""

import re
from typing import Any

from griffe import Extension, Object

DOCTEST = re.compile(r"^>>> .+(?:\n.+)*", re.MULTILINE)


class Doctests(Extension):
    """An extension of griffe, which reads the docstrings for the API pages."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        """Puts each doctest into a code block."""
        if obj.docstring:
            obj.docstring.value = DOCTEST.sub(lambda found: f"```pycon\n{found[0]}\n```", obj.docstring.value)
