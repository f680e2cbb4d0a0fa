"""Arguments: one check for all input from callers: functions, methods, options, commands and jobs.

============  =====================================================================================
``taken``     the values that an annotation accepts
``checking``  decorators that check the arguments of public calls
============  =====================================================================================

::

    from typing import Annotated
    from bookspark.support.arguments import AtLeastOne, checked

    @checked
    def copy(count: AtLeastOne, target: str) -> None: ...

``copy(0, "x")`` raises InvalidArgumentError: "copy: count 0 can't be used; choose at least 1 (a whole number)".

Law: a public call checks all of its arguments before it does anything. An invalid argument is an InvalidArgumentError with the
argument's name, the value and the accepted values; nothing was written or sent. The check is in the signature and nowhere
else.

Accepted values, as a user of Python expects:

================  ===========================================================================================================
``int``           also an object with ``__index__`` (numpy's); never a bool; 64 bits
``float``         also an int and other real numbers; never a bool, NaN or an infinity
``bool``          True and False alone
``str``           also its subclasses; no NUL, and nothing that UTF-8 can't encode (a lone surrogate)
``bytes``         also any buffer (bytearray, memoryview, an Arrow buffer); never a str: encode it
an ``Enum``       also its name or value as text, in upper or lower case
``Path``          also a str
a collection      of accepted items, never a str or bytes in place of several; the function gets a copy
a class           its instances, and stand-ins for them; never a value of a built-in type
================  ===========================================================================================================

``tests/support/arguments`` enumerates every public parameter and passes wrong values.
"""

from bookspark.support.arguments.checking import (
    Config,
    check_names,
    checked,
    checks_arguments,
    checks_itself,
    checks_methods,
    from_text,
    judged_tuple,
    judges,
    make_config,
    parameters,
    refusal,
)
from bookspark.support.arguments.taken import (
    AtLeastOne,
    BytesOrNone,
    EntryId,
    Hidden,
    IntervalSeconds,
    LastEntryId,
    Name,
    Password,
    PasswordText,
    Payload,
    Rule,
    Seconds,
    SecondsOrNone,
    WaitSeconds,
    bytes_of,
)

__all__ = [
    "AtLeastOne",
    "BytesOrNone",
    "Config",
    "EntryId",
    "Hidden",
    "IntervalSeconds",
    "LastEntryId",
    "Name",
    "Password",
    "PasswordText",
    "Payload",
    "Rule",
    "Seconds",
    "SecondsOrNone",
    "WaitSeconds",
    "bytes_of",
    "check_names",
    "checked",
    "checks_arguments",
    "checks_itself",
    "checks_methods",
    "from_text",
    "judged_tuple",
    "judges",
    "make_config",
    "parameters",
    "refusal",
]
