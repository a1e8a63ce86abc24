"""Where an agent keeps what must not be lost: the port, and stores in memory, in files and in PostgreSQL."""
