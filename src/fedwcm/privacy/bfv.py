"""The BFV scheme, through TenSEAL: generate keys, encrypt, add and decrypt, all on bytes.

Polynomials of degree 4,096 and the plain modulus 1,032,193 give the ciphertext size that the paper reports.
The coefficient modulus is SEAL's own for this degree: 109 bits, rated at 128 bits of security.

Bytes from other parties are bounded and checked here before a result is used: TenSEAL trusts the lengths that a
serialised vector claims.
"""

import importlib
from functools import lru_cache
from typing import Any

import numpy as np

from fedwcm.privacy.encoding import PLAIN_MODULUS, SLOTS, Ints
from fedwcm.privacy.wire import ProtocolError

_HEADERS_BYTES = 4096
MAX_CIPHERTEXT_BYTES = 2 * 2 * SLOTS * 8 + _HEADERS_BYTES
"""Two polynomials over two primes, uncompressed."""
MAX_CONTEXT_BYTES = 2 * 3 * SLOTS * 8 + _HEADERS_BYTES
"""A public key: two polynomials over three primes, uncompressed."""

_FAILURES = (ValueError, RuntimeError, TypeError, IndexError, OverflowError, MemoryError)
"""Exceptions of TenSEAL and SEAL for bytes that they cannot read."""


@lru_cache(maxsize=1)
def tenseal() -> Any:
    """Return the library; raise an ImportError that names the command to install it."""
    try:
        return importlib.import_module("tenseal")
    except (ImportError, OSError) as error:
        raise ImportError(
            f"Homomorphic encryption needs TenSEAL, which cannot be loaded ({error}): pip install 'fedwcm[he]'"
        ) from error


class SecretKey:
    """The secret half of a key pair. Its bytes never leave the key holder."""

    def __init__(self, data: bytes) -> None:
        self._context = tenseal().context_from(data, n_threads=1)

    @staticmethod
    def generate() -> tuple[bytes, bytes]:
        """Return a new key pair as bytes: the secret key, and the public context to send."""
        context = _new_context()
        secret = context.serialize(
            save_public_key=False, save_secret_key=True, save_galois_keys=False, save_relin_keys=False
        )
        public = context.serialize(
            save_public_key=True, save_secret_key=False, save_galois_keys=False, save_relin_keys=False
        )
        return secret, public

    def decrypt(self, data: bytes, slots: int) -> Ints:
        """Return the slots of a ciphertext, each in [0, plain modulus)."""
        vector = _read(self._context, data, slots)
        try:
            signed = vector.decrypt()
        except _FAILURES as error:
            raise ProtocolError(f"the ciphertext cannot be decrypted: {error}") from error
        # TenSEAL returns the upper half of the slot values as negative numbers.
        return np.asarray(signed, dtype=np.int64) % PLAIN_MODULUS


class PublicContext:
    """Encrypts and adds: the parameters and a public key, without the secret key."""

    def __init__(self, data: bytes) -> None:
        if len(data) > MAX_CONTEXT_BYTES:
            raise ProtocolError(f"a context of {len(data):,} bytes; at most {MAX_CONTEXT_BYTES:,} are allowed")
        library = tenseal()
        try:
            self._context = library.context_from(data, n_threads=1)
        except _FAILURES as error:
            raise ProtocolError(f"the context cannot be read: {error}") from error
        if self._context.has_secret_key():
            raise ProtocolError("the context holds a secret key, which must not be sent")
        if not self._context.has_public_key():
            raise ProtocolError("the context holds no public key")
        if _parameters(self._context) != _own_parameters():
            raise ProtocolError("the context has other encryption parameters")

    def encrypt(self, slots: Ints) -> bytes:
        """Encrypt slots; encrypting the same slots twice gives two different ciphertexts."""
        data: bytes = tenseal().bfv_vector(self._context, slots.tolist()).serialize()
        return data

    def add(self, total: Any, data: bytes, slots: int) -> Any:
        """Add a received ciphertext to `total`; None is the empty sum."""
        vector = _read(self._context, data, slots)
        if total is None:
            return vector
        try:
            return total + vector
        except _FAILURES as error:
            raise ProtocolError(f"the ciphertext cannot be added: {error}") from error


def _new_context() -> Any:
    library = tenseal()
    return library.context(
        library.SCHEME_TYPE.BFV, poly_modulus_degree=SLOTS, plain_modulus=PLAIN_MODULUS, n_threads=1
    )


def _read(context: Any, data: bytes, slots: int) -> Any:
    """Read a ciphertext of exactly this many slots, without trusting the sizes that it claims."""
    if len(data) > MAX_CIPHERTEXT_BYTES:
        raise ProtocolError(f"a ciphertext of {len(data):,} bytes; at most {MAX_CIPHERTEXT_BYTES:,} are allowed")
    try:
        vector = tenseal().bfv_vector_from(context, data)
        size, parts = vector.size(), len(vector.ciphertext())
    except _FAILURES as error:
        raise ProtocolError(f"the ciphertext cannot be read: {error}") from error
    if size != slots or parts != 1:
        raise ProtocolError(f"{size} slots in {parts} ciphertexts; {slots} slots in one are expected")
    return vector


def _parameters(context: Any) -> list[int]:
    """Return SEAL's digest of degree and moduli."""
    digest: list[int] = context.seal_context().data.key_parms_id()
    return digest


@lru_cache(maxsize=1)
def _own_parameters() -> list[int]:
    return _parameters(_new_context())
