-- The flat table: run this at the destination. It may be left out: trucker makes a table that is missing.
CREATE TABLE flat_orders (
    id int PRIMARY KEY,
    ordered_at timestamptz NOT NULL,
    customer_id int NOT NULL,
    customer_name text,
    country text,
    product_title text,
    quantity int NOT NULL,
    total numeric,
    note text
);
CREATE INDEX ON flat_orders (country, ordered_at);
