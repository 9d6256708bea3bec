"""Measures ringfence against its floors and its peers, as ratios within one run.

Every row runs our side and the other in turn, round by round, in one process, and makes a ratio
of each round. So what the machine does meanwhile falls on both. Absolute times are shown too, but
only the ratios are judged. Each row checks in the same run that what it timed was done, and with
the protection that it claims; a check that fails is all that fails a run.
"""
