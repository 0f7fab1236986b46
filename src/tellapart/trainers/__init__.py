"""Our rewards in other people's trainers: TRL, ms-swift, verl, and by HTTP any other.  None of them is imported here."""
