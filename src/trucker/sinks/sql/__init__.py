"""What sinks of SQL databases share: trucker's own tables, and rows merged one by one.

dialect        what the statements here must know of a store
ledger_tables  positions of trucks, states of tables
letter_table   dead letters
filled_tables  which tables trucker has filled, and what follows when they are others
examination    what is looked at before a run; the order of tables that refer to each other
sql_sink       the base of a sink that uses all of these
row_table      staged rows applied to a table row by row
"""
