-- The totals: run this at the destination.
CREATE TABLE daily_sales (
    day date NOT NULL,
    product text NOT NULL,
    orders bigint NOT NULL,
    quantity bigint NOT NULL,
    amount numeric NOT NULL,
    PRIMARY KEY (day, product)
);
-- Groups that have become empty are found by this.
CREATE INDEX ON daily_sales (orders) WHERE orders = 0;
