"""The HTTP face, without Ray: REST, streams, documents, guards."""
