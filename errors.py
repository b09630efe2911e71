"""Every error the plugin raises on purpose.

    ContextManagerError
    ├── StorageUnavailable      the database cannot be read or written now
    ├── UnknownSession          no such session
    ├── UnknownConversation     no such conversation in the session's archive
    ├── StaleRevision           somebody else changed the session meanwhile
    ├── InvalidChange           a value that may not be stored
    ├── JournalDamaged          a history that the journal cannot give back
    ├── CompressionRefused      a summary that was not made, with the reason
    └── MemoryRefused           a memory that was not stored, with the reason

``str(error)`` is fit to be shown to a user: what the page may show is in both
languages, and the page takes the half of its own.
"""

from typing import Any

NO_DATABASE = (
    "插件的数据库不可用，请看 AstrBot 的日志。"
    " / The plugin's database is not available; see AstrBot's log."
)
NO_SESSION = "没有这个会话 / unknown session"
STARTING = "插件还在启动，请稍后再试。 / The plugin is still starting; try again."


class ContextManagerError(Exception):
    """Base of all errors of this plugin."""


class StorageUnavailable(ContextManagerError):
    """The plugin's database cannot be used at the moment."""


class UnknownSession(ContextManagerError):
    """No session has the given id."""


class UnknownConversation(ContextManagerError):
    """The session's archive holds no messages of such a conversation."""


class StaleRevision(ContextManagerError):
    """The session changed since the caller read it.

    Attributes:
        current: The session as it is stored now.
    """

    def __init__(self, current: Any) -> None:
        super().__init__(
            "这个会话在别处被修改过。 / This session was changed elsewhere in the meantime."
        )
        self.current = current


class InvalidChange(ContextManagerError):
    """A value that may not be stored.

    Attributes:
        field: Name of the offending field.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class JournalDamaged(ContextManagerError):
    """The journal does not hold the history it should."""


class CompressionRefused(ContextManagerError):
    """A summary was not made.

    Attributes:
        reason_key: Key of the text that explains it to the user.
        final: Whether asking the model again cannot help.
        params: Values for the placeholders of that text.
    """

    def __init__(self, reason_key: str, *, final: bool = False, **params: Any) -> None:
        super().__init__(reason_key)
        self.reason_key = reason_key
        self.final = final
        self.params = params


class MemoryRefused(ContextManagerError):
    """A memory was not stored.

    Attributes:
        reason_key: Key of the text that explains it, to users and models.
        params: Values for the placeholders of that text.
    """

    def __init__(self, reason_key: str, **params: Any) -> None:
        super().__init__(reason_key)
        self.reason_key = reason_key
        self.params = params
