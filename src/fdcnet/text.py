"""Numbers in sentences."""


def count(amount: int, one: str) -> str:
    """1 photo, 2 photos, 1,200 classes."""
    return f"{amount:,} {one}{'' if amount == 1 else 'es' if one.endswith('s') else 's'}"
