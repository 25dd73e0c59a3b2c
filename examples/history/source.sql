-- The shop: run this at the source. With the whole old row in the stream a change is told by both its sides.
CREATE TABLE orders (
    id int PRIMARY KEY,
    customer text NOT NULL,
    state text NOT NULL,
    note text
);
ALTER TABLE orders REPLICA IDENTITY FULL;
CREATE TABLE payments (
    id int PRIMARY KEY,
    order_id int NOT NULL,
    amount numeric(12, 2) NOT NULL
);
ALTER TABLE payments REPLICA IDENTITY FULL;
