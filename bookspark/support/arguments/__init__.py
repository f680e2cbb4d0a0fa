"""Arguments: one mechanism judges what callers hand in, for functions, methods, options, commands and jobs.

============  =====================================================================================
``taken``     what an annotation takes
``checking``  decorators that judge the arguments of public calls
============  =====================================================================================

::

    from typing import Annotated
    from bookspark.support.arguments import AtLeastOne, checked

    @checked
    def copy(count: AtLeastOne, target: str) -> None: ...

``copy(0, "x")`` raises InvalidArgumentError: "copy: count 0 can't be used; choose at least 1 (a whole number)".

Law: a public call judges all of its arguments before it does anything. One that can't be used is an InvalidArgumentError, which
names the argument, what came and what is taken; nothing was written or sent. The check stands in the signature and nowhere else.

What is taken is what a user of Python expects:

================  ===========================================================================================================
``int``           also what has ``__index__`` (numpy's); never a bool; 64 bits
``float``         also an int and other real numbers; never a bool, NaN or an infinity
``bool``          True and False alone
``str``           also its subclasses; no NUL, and nothing that UTF-8 can't say (a lone surrogate)
``bytes``         also whatever lends its bytes (bytearray, memoryview, an Arrow buffer); never a str: encode it
an ``Enum``       also its name or value as text, in upper or lower case
``Path``          also a str
a collection      of items that are taken, never a str or bytes in place of several; a copy is handed on
a class           its instances, and stand-ins for them; never a value of a built-in type
================  ===========================================================================================================

``tests/support/arguments`` finds every public parameter by itself and hands it wrong values.
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
