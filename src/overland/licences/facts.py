"""What a licence obliges its user to, as far as a corpus or a model card has to say it.

Short and conservative: a licence that is not listed owes attribution and its notice.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Facts:
    """`attribution`: name the authors. `notice`: pass the licence text on. `share_alike`: adaptations keep it.

    `commercial` and `derivatives`: whether commercial use and adaptations are permitted at all.
    """

    attribution: bool
    notice: bool
    share_alike: bool
    url: str
    commercial: bool = True
    derivatives: bool = True


_RULES: tuple[tuple[str, tuple[bool, bool, bool]], ...] = (
    (r"CC0-1\.0|CC-PDDC|CC-PDM-1\.0|LicenseRef-public-domain|Unlicense|0BSD|MIT-0|WTFPL", (False, False, False)),
    (r"CC-BY(-NC)?-SA-.*", (True, True, True)),
    (r"CC-BY-.*", (True, True, False)),
    (r"(A|L)?GPL-.*|MPL-.*|EPL-.*|EUPL-.*|CDDL-.*|GFDL-.*|OSL-.*", (True, True, True)),
)


def facts(key: str) -> Facts:
    """The obligations of one licence key."""
    base = key.split(" WITH ")[0]
    attribution, notice, share_alike = next(
        (values for pattern, values in _RULES if re.fullmatch(pattern, base)), (True, True, False)
    )
    url = "" if base.startswith("LicenseRef-") else f"https://spdx.org/licenses/{base}.html"
    creative = base.startswith("CC-")
    return Facts(
        attribution,
        notice,
        share_alike,
        url,
        commercial=not (creative and "-NC" in base),
        derivatives=not (creative and "-ND" in base),
    )
