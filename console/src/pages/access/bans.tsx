import { Trans, useLingui } from '@lingui/react/macro';
import type { Schemas } from '../../api/client';
import type { Fields } from '../../api/objects';
import { mayOnNode, useCaller } from '../../api/session';
import type { Column } from '../../ui/data-table';
import type { ObjectKind } from '../../ui/object-editor';
import { ObjectList } from '../../ui/object-list';
import { StateBadge } from '../../ui/state-badge';
import { Ago } from '../../ui/time';
import { formatTime } from '../../format';

type Ban = Schemas['Ban'];

const subjects = ['client_id', 'username', 'address'] as const;

/** What a ban applies to; a new one without a subject is by client id. */
function subjectOf(values: Fields): string {
  return typeof values.by === 'string'
    ? values.by
    : (subjects.find((name) => values[name] !== undefined) ?? 'client_id');
}

export function Bans() {
  const { t } = useLingui();
  const caller = useCaller();
  const kind: ObjectKind = {
    path: '/api/v1/bans',
    command: 'bans',
    idField: 'id',
    newSchema: 'BanNew',
    inputSchema: 'BanInput',
    newTitle: t`New ban`,
    initial: { by: 'client_id', client_id: '' },
    pseudoFields: ['by'],
    toBody: (values) => {
      const { by: _, ...rest } = values;
      const chosen = subjectOf(values);
      return Object.fromEntries(
        Object.entries(rest).filter(([name]) => name === chosen || !subjects.some((each) => each === name)),
      );
    },
    deletion: (object) => (
      <Trans>
        This ends the ban of {String(object.client_id ?? object.username ?? object.address)}: its clients may connect
        again.
      </Trans>
    ),
    fields: () => [
      {
        name: 'by',
        label: t`Ban`,
        help: t`Exactly one of these; connected clients are disconnected at once.`,
        options: [
          { value: 'client_id', label: t`a client id` },
          { value: 'username', label: t`a user name` },
          { value: 'address', label: t`an address or a network` },
        ],
        control: 'select',
        isShown: (values) => 'by' in values,
      },
      {
        name: 'client_id',
        label: t`Client id`,
        isShown: (values) => subjectOf(values) === 'client_id',
      },
      { name: 'username', label: t`User name`, isShown: (values) => subjectOf(values) === 'username' },
      {
        name: 'address',
        label: t`Address`,
        help: '',
        placeholder: '203.0.113.0/24',
        isShown: (values) => subjectOf(values) === 'address',
      },
      { name: 'reason', label: t`Reason`, help: '' },
      { name: 'until_ms', label: t`Until`, help: t`Empty: for ever.`, control: 'time' },
    ],
  };
  const columns: Column<Ban>[] = [
    {
      id: 'subject',
      header: t`Applies to`,
      cell: (row) =>
        row.client_id ? (
          <Trans>client id {row.client_id}</Trans>
        ) : row.username ? (
          <Trans>user {row.username}</Trans>
        ) : (
          <Trans>address {row.address}</Trans>
        ),
    },
    { id: 'reason', header: t`Reason`, sort: (row) => row.reason, cell: (row) => row.reason || '–' },
    {
      id: 'until',
      header: t`Until`,
      sort: (row) => row.until_ms,
      cell: (row) =>
        row.until_ms === undefined ? (
          <Trans>for ever</Trans>
        ) : row.until_ms < Date.now() ? (
          <StateBadge health="unknown">
            <Trans>ended</Trans>
          </StateBadge>
        ) : (
          formatTime(row.until_ms)
        ),
    },
    {
      id: 'created',
      header: t`Created`,
      sort: (row) => row.created_at_ms,
      cell: (row) => <Ago ms={row.created_at_ms} />,
    },
  ];
  return (
    <ObjectList<Ban>
      kind={kind}
      label={t`Bans`}
      columns={columns}
      mayChange={mayOnNode(caller, 'operator')}
      empty={{
        title: <Trans>Nobody is banned</Trans>,
        text: (
          <Trans>A ban disconnects clients by client id, user name or address, and rejects them from then on.</Trans>
        ),
      }}
    />
  );
}
