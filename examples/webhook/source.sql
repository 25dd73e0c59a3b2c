-- The shop: run this at the source.
CREATE TABLE orders (
    id int PRIMARY KEY,
    customer text NOT NULL,
    state text NOT NULL,
    amount numeric(12, 2) NOT NULL
);
