-- The shop: run this at the source.
CREATE TABLE customers (
    id int PRIMARY KEY,
    name text NOT NULL,
    country text NOT NULL
);
CREATE TABLE products (
    id int PRIMARY KEY,
    title text NOT NULL,
    price numeric(10, 2) NOT NULL
);
CREATE TABLE orders (
    id int PRIMARY KEY,
    customer int NOT NULL REFERENCES customers,
    product int NOT NULL REFERENCES products,
    quantity int NOT NULL,
    ordered_at timestamptz NOT NULL DEFAULT now(),
    note text
);
