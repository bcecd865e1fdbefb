"""A tagger: trained from files of tagged sentences, kept in a folder."""

from longlag.tagger.model import Tagger as Tagger
