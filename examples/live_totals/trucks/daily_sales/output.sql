-- Runs at the destination, in the transaction that stores the position: no change counts twice.
-- What a row is now is added to its group, what it was before is taken from the group it was in.
INSERT INTO daily_sales AS s (day, product, orders, quantity, amount)
SELECT day, product, sum(orders), sum(quantity), sum(amount)
FROM (
    SELECT r.day, r.product, 1 AS orders, r.quantity, r.amount
    FROM {{ rows }} WHERE r.operation <> 'delete'
    UNION ALL
    SELECT r.old__day, r.old__product, -1, -r.old__quantity, -r.old__amount
    FROM {{ rows }} WHERE r.operation <> 'insert'
) AS difference
GROUP BY day, product
ON CONFLICT (day, product) DO UPDATE SET
    orders = s.orders + excluded.orders,
    quantity = s.quantity + excluded.quantity,
    amount = s.amount + excluded.amount;

DELETE FROM daily_sales WHERE orders = 0;
