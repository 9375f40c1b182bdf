"""The model stores of other programs: Ollama, LM Studio, Hugging Face's cache and llama.cpp's cache.

Their models are used in place. Nothing in these folders is ever copied, changed or deleted.
"""

from backend.models.stores.listing import PROGRAMS, Listing, current_path, find_stored, list_stores
from backend.models.stores.stored_model import Store, StoredModel

__all__ = ["PROGRAMS", "Listing", "Store", "StoredModel", "current_path", "find_stored", "list_stores"]
