"""HTTP without Ray: REST, sessions, streams, documents, guards."""
