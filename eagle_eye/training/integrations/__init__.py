"""Other frameworks' trainers: as elastic workers, or watched where they are."""
