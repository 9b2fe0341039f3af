"""What happens in a world while somebody walks: events that extend its prompt."""
