-- What is known of a wish when it is put on record, in words that claim no more; and the delivery that tells the rest.

ALTER TABLE {schema}.notifications
    DROP CONSTRAINT notifications_status_check,
    ADD CONSTRAINT notifications_status_check
        CHECK (status IN ('pending', 'sent', 'failed', 'uncertain', 'unknown', 'read')),
    ADD COLUMN delivery_id uuid;                -- Messenger's; NULL: it has none, or did not say

UPDATE {schema}.notifications
SET delivery_id = (metadata #>> '{delivery,delivery_id}')::uuid,
    status = CASE WHEN metadata #>> '{delivery,status}' = 'uncertain' THEN 'uncertain' ELSE status END
WHERE metadata #>> '{delivery,delivery_id}' IS NOT NULL;

UPDATE {schema}.notifications SET status = 'unknown'
WHERE delivery_id IS NULL AND status = 'failed' AND error LIKE 'messenger gave no answer within %';
