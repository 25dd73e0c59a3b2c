-- The shop: run this at the source. Sums are kept by what a row was and what it is: the old row has to be in the stream.
CREATE TABLE orders (
    id int PRIMARY KEY,
    day date NOT NULL,
    product text NOT NULL,
    quantity int NOT NULL,
    amount numeric(12, 2) NOT NULL
);
ALTER TABLE orders REPLICA IDENTITY FULL;
