"""How well Messenger delivers, and how strictly it uses each provider because of that (seed 001, section 15).

    levels   the SLIs of a stretch of time, read from the delivery tables when asked
    report   their shape: rows to rates, unknown is None
    budget   what burns the error budget, and who takes the stance that follows
    long_budget  the same over hours and days, which is counted elsewhere, and when it is spent
    tools    `messenger_service_levels`

What counts for the error budget of a channel such as `telegram.bot`, at the time an attempt began:

    good     an attempt that the provider accepted
    bad      an attempt that failed retryably, with `target_unavailable`, `timeout` or `internal_error`, or that left a
             doubt; and a delivery that ended `failed` or `dead_lettered` with one of these classes without any attempt
             that says so (each failure counts once, where it first showed)
    neither  a `validation_error`, a recipient who is suppressed by now and was refused for good, an attempt that began
             after `not_after`, a crash of ours before a byte left: no provider was used badly by any of these

Attempts and not deliveries, because abuse shows there first: three refused attempts of one delivery are three knocks at
a provider's door, and they are known minutes before the delivery has ended.
"""

from butlers.messenger.service_levels.levels import ServiceLevels
from butlers.messenger.service_levels.tools import ServiceLevelTools

__all__ = ["ServiceLevelTools", "ServiceLevels"]
