"""Other nodes: who they are (`meeting`), what they have (`directory`), and their blocks."""
