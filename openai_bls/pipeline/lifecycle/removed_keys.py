"""End of what runs for an API key that was taken out."""

from __future__ import annotations

import asyncio
import logging

from openai_bls.core.errors import AuthenticationError
from openai_bls.core.keys.api_keys import ApiKeys
from openai_bls.core.keys.watched_files import CHECK_INTERVAL_S
from openai_bls.pipeline.lifecycle.life import Life

logger = logging.getLogger(__name__)


class RemovedKeys:
    """Requests in progress, which end with an error once no key has the name of theirs. Belongs to the event loop.

    Args:
        api_keys: keys that requests must have.
    """

    def __init__(self, api_keys: ApiKeys) -> None:
        self._api_keys = api_keys
        self.lives: set[Life] = set()
        """Requests in progress."""

    async def watch(self) -> None:
        """Look for keys that were taken out, until cancelled."""
        while self._api_keys.required:
            await asyncio.sleep(CHECK_INTERVAL_S)
            try:
                self.look()
            except Exception:
                logger.exception("the requests of removed keys could not be ended")

    def look(self) -> None:
        """End the requests whose key has been missing since the look before this one.

        A request that is still being prepared has no work to end: a later look does.
        """
        # Without a name is the key that cannot change while the server runs, or none, where none is asked for.
        for key in {life.key for life in self.lives} - {""}:
            if not self._api_keys.missing_s(key):
                continue
            ended = [life.work for life in self.lives if life.key == key and life.work is not None]
            for work in ended:
                work.fail(AuthenticationError("The API key of this request was taken out."))
            if ended:
                logger.info("%d requests ended: the API key %s was taken out", len(ended), key)
