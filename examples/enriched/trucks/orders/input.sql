-- Runs at the source, once for all changed orders of a batch. A LEFT JOIN: an order stays in the flat table whatever
-- has become of its customer or product meanwhile.
SELECT
    r.id,
    r.ordered_at,
    r.customer AS customer_id,
    c.name AS customer_name,
    c.country,
    p.title AS product_title,
    r.quantity,
    r.quantity * p.price AS total,
    r.note
FROM {{ rows }}
LEFT JOIN customers c ON c.id = r.customer
LEFT JOIN products p ON p.id = r.product
