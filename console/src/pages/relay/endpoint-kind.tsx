import { Trans, useLingui } from '@lingui/react/macro';
import type { ObjectKind } from '../../ui/object-editor';
import { namedChoices } from '../../api/choice-names';
import { useList } from '../../api/objects';
import { useCaller } from '../../api/session';
import { endpointsPath } from './endpoint-address';

/** The fields of a relay endpoint. */
export function useEndpointKind(): ObjectKind {
  const { t } = useLingui();
  const caller = useCaller();
  const namespaces = useNamespaceNames();
  return {
    path: endpointsPath,
    command: 'endpoints',
    idField: 'id',
    newSchema: 'RelayEndpointNew',
    inputSchema: 'RelayEndpointInput',
    newTitle: t`New endpoint`,
    initial: { mode: 'direct' },
    deletion: (object) => (
      <Trans>
        This deletes the endpoint {String(object.id)} with its settings, statistics and last messages, and closes its
        connections. Its product and devices stay.
      </Trans>
    ),
    fields: (isNew) => [
      ...(isNew
        ? [
            {
              name: 'id',
              label: t`Id`,
              help: t`Part of the address. Without one, the node generates an id that cannot be guessed.`,
              placeholder: t`generated`,
              control: 'mono' as const,
            },
          ]
        : []),
      { name: 'name', label: t`Name`, help: '' },
      ...(isNew && (caller.role !== null || caller.namespaces.length > 1)
        ? [{ name: 'namespace', label: t`Namespace`, help: t`Who owns the endpoint.`, options: namespaces }]
        : []),
      {
        name: 'mode',
        label: t`Mode`,
        help: t`What receivers get.`,
        options: [
          { value: 'direct', label: t`direct: as it was sent` },
          { value: 'json', label: t`json: in an object with type, data and timestamp` },
          { value: 'custom_header', label: t`custom header: a text before each message` },
        ],
      },
      {
        name: 'header',
        label: t`Header`,
        help: t`Directly before each message.`,
        isShown: (values) => values.mode === 'custom_header',
      },
      {
        name: 'access_key',
        label: t`Access key`,
        help: t`16 to 128 letters, digits, - _ and . that clients must present; empty: unchanged, or none.`,
        control: 'secret',
      },
      {
        name: 'allowed_origins',
        label: t`Allowed origins`,
        help: t`Origins of web pages that may connect; none: all.`,
        placeholder: 'https://example.org',
      },
      { name: 'max_connections', label: t`Maximum connections`, help: '' },
      { name: 'max_message_bytes', label: t`Maximum bytes of a message`, help: '' },
      { name: 'max_messages_per_s', label: t`Messages per second of a connection`, help: t`0: no limit.` },
      { name: 'max_bytes_per_s', label: t`Bytes per second of a connection`, help: t`0: no limit.` },
      {
        name: 'slow_receivers',
        label: t`Slow receivers`,
        help: t`When a receiver does not keep up.`,
        options: namedChoices('slow_receivers', ['drop_oldest', 'disconnect']),
      },
      { name: 'max_backlog_bytes', label: t`Bytes that wait for a slow receiver`, help: '' },
      { name: 'ping_interval_s', label: t`Seconds between pings`, help: '' },
      { name: 'history_messages', label: t`Last messages in memory`, help: '' },
      { name: 'history_bytes', label: t`Bytes of last messages in memory`, help: '' },
      {
        name: 'product',
        label: t`Product of devices`,
        help: t`For connections that identify as devices; without one, the endpoint gets a product of its own.`,
      },
      { name: 'units', label: t`Units of keys`, help: t`Such as flow and l/min.`, control: 'pairs' },
    ],
  };
}

/** Namespaces that an object can be created in. */
export function useNamespaceNames(): string[] {
  const caller = useCaller();
  const isOnNode = caller.role !== null;
  const all = useList<{ id: string }>('/api/v1/namespaces', {}, { enabled: isOnNode });
  return isOnNode ? (all.rows ?? []).map(({ id }) => id) : caller.namespaces.map(({ namespace }) => namespace);
}
