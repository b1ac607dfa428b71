import { Group, Input, NumberInput, Progress, Stack, Switch } from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { namedChoices } from '../../api/choice-names';
import { useRead, type Schemas } from '../../api/client';
import { objectPath, send } from '../../api/objects';
import { useSchema } from '../../api/schemas';
import { mayOnNode, useCaller } from '../../api/session';
import { formatNumber } from '../../format';
import type { Column } from '../../ui/data-table';
import type { ObjectKind } from '../../ui/object-editor';
import { ObjectList } from '../../ui/object-list';
import type { InputProps } from '../../ui/field-inputs';
import { StateBadge } from '../../ui/state-badge';
import { ErrorState, Loading } from '../../ui/states';
import { Ago } from '../../ui/time';

type Namespace = Schemas['Namespace'];
type Usage = Schemas['QuotaUsage'];

const path = '/api/v1/namespaces';
const nearlyFull = 0.9;

/** Parts of the node that belong to somebody, with their quotas. */
export function Namespaces() {
  const { t } = useLingui();
  const caller = useCaller();
  const kind: ObjectKind = {
    path,
    command: 'namespaces',
    idField: 'id',
    newSchema: 'NamespaceNew',
    inputSchema: 'NamespaceInput',
    newTitle: t`New namespace`,
    initial: { id: '' },
    deletion: (object) => (
      <Trans>
        This deletes the namespace {String(object.id)} with its quotas. It is possible only when nothing belongs to it
        any more.
      </Trans>
    ),
    fields: (isNew) => [
      ...(isNew ? [{ name: 'id', label: t`Id` }] : []),
      { name: 'name', label: t`Name`, help: '' },
      { name: 'description', label: t`Description`, help: '' },
      {
        name: 'state',
        label: t`State`,
        help: t`The devices of a disabled namespace are disconnected, and its people and API keys are rejected.`,
        options: namedChoices('state', ['active', 'disabled']),
        control: 'select',
      },
      {
        name: 'reason',
        label: t`Reason`,
        help: t`People of the namespace see it.`,
        isShown: (values) => values.state === 'disabled',
      },
      { name: 'quotas', label: t`Quotas`, render: (input) => <QuotasInput {...input} /> },
    ],
  };
  const columns: Column<Namespace>[] = [
    { id: 'name', header: t`Name`, sort: (row) => row.name, cell: (row) => row.name || '–' },
    {
      id: 'state',
      header: t`State`,
      sort: (row) => row.state,
      cell: (row) =>
        row.state === 'disabled' ? (
          <StateBadge health="warning">
            <Trans>disabled</Trans>
          </StateBadge>
        ) : (
          <StateBadge health="good">
            <Trans>active</Trans>
          </StateBadge>
        ),
    },
    {
      id: 'devices',
      header: t`Devices at most`,
      align: 'right',
      sort: (row) => row.quotas?.devices,
      cell: (row) => (row.quotas?.devices == null ? '∞' : formatNumber(row.quotas.devices)),
    },
    { id: 'description', header: t`Description`, cell: (row) => row.description || '–' },
    {
      id: 'created',
      header: t`Created`,
      sort: (row) => row.created_at_ms,
      cell: (row) => <Ago ms={row.created_at_ms} />,
    },
  ];
  return (
    <ObjectList<Namespace>
      kind={kind}
      label={t`Namespaces`}
      columns={columns}
      mayChange={mayOnNode(caller, 'admin')}
      details={(object) => <UsageOf id={String(object.id)} />}
      empty={{
        title: <Trans>No namespaces yet</Trans>,
        text: <Trans>A namespace owns products, devices, groups and endpoints of a customer, a team or a site.</Trans>,
      }}
    />
  );
}

/** Names of quotas, in the order in which they are shown. */
function useQuotaNames(): Record<string, string> {
  const { t } = useLingui();
  return {
    products: t`Products`,
    devices: t`Devices`,
    groups: t`Groups`,
    alarm_rules: t`Alarm rules`,
    notifications: t`Notifications`,
    api_keys: t`API keys`,
    endpoints: t`Relay endpoints`,
    dashboards: t`Dashboards`,
    connections: t`Connections`,
    messages_per_s: t`Messages per second`,
    files: t`Files`,
    file_megabytes: t`Megabytes of files`,
    firmware_packages: t`Firmware packages`,
    firmware_assignments: t`Firmware assignments`,
  };
}

function UsageOf({ id }: { id: string }) {
  const names = useQuotaNames();
  const usage = useRead(
    [path, 'usage', id],
    (signal) => send<{ data: Usage[] }>('GET', `${objectPath(path, id)}/usage`, { signal }),
    { every: 5_000 },
  );
  if (usage.error && !usage.data) return <ErrorState error={usage.error} />;
  if (!usage.data) return <Loading />;
  return (
    <div className="usage">
      {usage.data.data.map(({ quota, used, limit }) => {
        const share = limit === null ? 0 : limit === 0 ? (used > 0 ? 1 : 0) : used / limit;
        return (
          <div key={quota} className="usage-row">
            <span>{names[quota] ?? quota}</span>
            <Progress
              value={share * 100}
              color={share >= 1 ? 'red' : share >= nearlyFull ? 'yellow' : undefined}
              aria-label={names[quota] ?? quota}
            />
            <span className="right">
              {formatNumber(used)} / {limit === null ? '∞' : formatNumber(limit)}
            </span>
          </div>
        );
      })}
    </div>
  );
}

/** Limits of what a namespace may own; a quota that is switched off has no limit. */
function QuotasInput({ value, onChange, error, label, disabled }: InputProps) {
  const { t } = useLingui();
  const names = useQuotaNames();
  const quotas = (value ?? {}) as Record<string, number | null>;
  const schema = useSchema('NamespaceInput')?.root.properties?.quotas;
  const defaults = (schema?.default ?? {}) as Record<string, number | null>;
  const known = Object.keys(defaults).sort((a, b) => (names[a] ?? a).localeCompare(names[b] ?? b));
  return (
    <Stack gap={6}>
      <Input.Label component="div">{label}</Input.Label>
      {known.map((name) => {
        const limit = name in quotas ? quotas[name] : (defaults[name] ?? null);
        return (
          <Group key={name} gap="sm" wrap="nowrap">
            <Switch
              w={220}
              label={names[name] ?? name}
              disabled={disabled}
              checked={limit !== null}
              onChange={(event) =>
                onChange({ ...quotas, [name]: event.currentTarget.checked ? (defaults[name] ?? 100) : null })
              }
            />
            {limit === null ? (
              <span className="dimmed">
                <Trans>no limit</Trans>
              </span>
            ) : (
              <NumberInput
                aria-label={t`Limit of ${names[name] ?? name}`}
                className="grow"
                min={0}
                disabled={disabled}
                value={limit}
                onChange={(next) => onChange({ ...quotas, [name]: Number(next) })}
              />
            )}
          </Group>
        );
      })}
      {error && <Input.Error>{error}</Input.Error>}
    </Stack>
  );
}
