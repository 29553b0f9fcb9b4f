from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_bls.api.common import files
from openai_bls.api.common.files import file_of_json
from openai_bls.core.errors import InvalidRequestError

AS_PEOPLE_HAVE_IT = st.sampled_from(["+", "/", "=", "A", "%", "\n"])


@given(st.binary(max_size=300), st.sets(AS_PEOPLE_HAVE_IT), st.integers(1, 80), st.booleans(), st.integers(1, 40))
def test_base64_as_people_have_it(data: bytes, escaped: set[str], width: int, is_uri: bool, size: int) -> None:
    """In lines, with escapes of a URL, in slices that cut both."""
    text = base64.b64encode(data).decode()
    if "\n" in escaped:
        text = "\r\n".join(text[at : at + width] for at in range(0, len(text), width)) + "\n"
    text = "".join(f"%{ord(one):02X}" if one in escaped else one for one in text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "_SLICE", size)
        assert file_of_json(f"data:audio/wav;base64,{text}" if is_uri else text, "file") == data


@pytest.mark.parametrize("text", ["é", "A", "AAAA=AAA", "AA==AAAA", "AA%4", "AA%zz", "data:audio/wav,AAAA"])
def test_what_is_no_base64(text: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        file_of_json(text, "file")
    assert caught.value.param == "file"
