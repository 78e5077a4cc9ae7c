"""What it is to look at contents alone: every rule seen from outside set aside, but those of what a device reads."""

from pagedkv.spec.outside import OUTSIDE

CONTENTS_ALONE = frozenset(OUTSIDE) - {"R-DATA", "R-TAB-1", "R-OWN-4", "R-HASH-5"}
