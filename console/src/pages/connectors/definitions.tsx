import { Select, Text } from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { api, unwrap, useRead, type Schemas } from '../../api/client';
import type { Schema } from '../../api/json-schema';
import { useSchema } from '../../api/schemas';
import type { Definition } from './definition-drawer';

type ConnectorType = Schemas['ConnectorType'];

export function useConnectorTypes() {
  return useRead(
    ['connector-types'],
    async (signal) => (await unwrap(api.GET('/api/v1/connector-types', { signal }))).data,
    { isConstant: true },
  );
}

/** Connectors with their types, to find the schema of a sink or source. */
function useConnectors() {
  return useRead(['/api/v1/connectors', 'types'], async (signal) => {
    const page = await unwrap(api.GET('/api/v1/connectors', { params: { query: { limit: 1000 } }, signal }));
    return page.data.map((connector) => ({ name: connector.name, type: connector.type }));
  });
}

const asSchema = (schema: ConnectorType['sink_schema']) => schema as Schema;

export function useConnectorDefinition(): Definition {
  const { t } = useLingui();
  const types = useConnectorTypes();
  return {
    path: '/api/v1/connectors',
    command: 'connectors',
    title: <Trans>Connectors</Trans>,
    newTitle: <Trans>New connector</Trans>,
    chooser: (values, onChange, isNew) => (
      <Select
        label={t`Type`}
        required
        disabled={!isNew}
        searchable
        data={(types.data ?? []).map(({ type, title }) => ({ value: type, label: title }))}
        value={typeof values.type === 'string' ? values.type : null}
        onChange={(type) => onChange(type ? { type } : {})}
      />
    ),
    schemaOf: ({ type }) => {
      const found = types.data?.find((each) => each.type === type);
      return found && { schema: asSchema(found.connector_schema) };
    },
    testPath: (name) =>
      name === null ? '/api/v1/connectors/test' : `/api/v1/connectors/${encodeURIComponent(name)}/test`,
    deletion: (name) => (
      <Trans>
        This deletes the connector {name} with its credentials. It is rejected while a sink or source uses it.
      </Trans>
    ),
  };
}

/** Sinks and sources: the connector decides which settings there are. */
export function useChannelDefinition(kind: 'sinks' | 'sources'): Definition {
  const { t } = useLingui();
  const types = useConnectorTypes();
  const connectors = useConnectors();
  const isSink = kind === 'sinks';
  const typeOf = (connector: unknown) => {
    const type = connectors.data?.find(({ name }) => name === connector)?.type;
    return types.data?.find((each) => each.type === type);
  };
  const usable = (connectors.data ?? []).filter(({ name }) => isSink || typeOf(name)?.source_schema);
  return {
    path: `/api/v1/${kind}`,
    command: kind,
    title: isSink ? <Trans>Sinks</Trans> : <Trans>Sources</Trans>,
    newTitle: isSink ? <Trans>New sink</Trans> : <Trans>New source</Trans>,
    chooser: (values, onChange) => {
      const type = typeOf(values.connector);
      return (
        <div>
          <Select
            label={t`Connector`}
            required
            searchable
            data={usable.map(({ name }) => name)}
            value={typeof values.connector === 'string' ? values.connector : null}
            nothingFoundMessage={t`There is no connector yet`}
            onChange={(connector) => {
              // Settings of another type of connector would be rejected.
              const keeps = connector !== null && typeOf(connector)?.type === type?.type;
              onChange({ ...(keeps ? values : {}), ...(connector ? { connector } : {}) });
            }}
          />
          {type && (
            <Text size="xs" c="dimmed" mt={4}>
              {type.title}
            </Text>
          )}
          {connectors.data && usable.length === 0 && (
            <Text size="xs" c="var(--tg-warning)" mt={4}>
              {isSink ? (
                <Trans>There is no connector yet. Create one first: it has the address and the credentials.</Trans>
              ) : (
                <Trans>
                  There is no connector that can receive. Create one first, for MQTT, Kafka, NATS, Redis or HTTP.
                </Trans>
              )}
            </Text>
          )}
        </div>
      );
    },
    schemaOf: ({ connector }) => {
      const type = typeOf(connector);
      const schema = isSink ? type?.sink_schema : type?.source_schema;
      return schema ? { schema: asSchema(schema) } : undefined;
    },
    testPath: (name) => (isSink && name !== null ? `/api/v1/sinks/${encodeURIComponent(name)}/test` : null),
    deletion: (name) =>
      isSink ? (
        <Trans>
          This deletes the sink {name} with its queued rows and dead letters. It is rejected while a rule or product
          uses it.
        </Trans>
      ) : (
        <Trans>This deletes the source {name}. Rules that read from it receive nothing any more.</Trans>
      ),
  };
}

export function usePullSourceDefinition(): Definition {
  const scope = useSchema('PullSourceInput');
  return {
    path: '/api/v1/pull-sources',
    command: 'pull-sources',
    title: <Trans>Pull sources</Trans>,
    newTitle: <Trans>New pull source</Trans>,
    oneOf: ['prometheus', 'http', 'ipmi'],
    schemaOf: () => scope && { schema: scope.root, scope },
    testPath: (name) => (name === null ? null : `/api/v1/pull-sources/${encodeURIComponent(name)}/test`),
    deletion: (name) => (
      <Trans>This deletes the pull source {name}. The values that it has stored for devices are kept.</Trans>
    ),
  };
}
