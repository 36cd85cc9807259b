-- name: target_card
-- What a butler says it can take, read right before something is handed to it.
SELECT name, eligibility_state, held IS NOT NULL AS held, capabilities, route_contract_min, route_contract_max
FROM {schema}.butler_registry WHERE name = $1;
