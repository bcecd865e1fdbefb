"""The playground: one page, which a browser shows, and the server that derives cells typed there."""

from longlag.play._server import PAGE as PAGE
from longlag.play._server import Playground as Playground
