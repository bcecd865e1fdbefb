"""A tagger as a product: files in, a model out, tags out."""

from longlag.tagger.model import Tagger as Tagger
