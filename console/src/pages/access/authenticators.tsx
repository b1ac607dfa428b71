import { Alert, Text } from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import type { Schemas } from '../../api/client';
import { useList, type Fields, type ObjectFrame } from '../../api/objects';
import { mayOnNode, useCaller } from '../../api/session';
import { formatNumber } from '../../format';
import type { Column } from '../../ui/data-table';
import type { ObjectKind } from '../../ui/object-editor';
import { ObjectList } from '../../ui/object-list';
import { Facts } from '../../ui/page';
import type { Field } from '../../ui/object-form';
import { StateBadge } from '../../ui/state-badge';
import { Ago } from '../../ui/time';

type Status = Schemas['AuthenticatorInfo'];
type Authenticator = ObjectFrame & { id: string; type: string; enabled?: boolean; order?: number };

const databases = ['mysql', 'postgres', 'redis'];
const isOf =
  (...types: string[]) =>
  (values: Fields) =>
    types.includes(String(values.type));

/** Where the node looks up clients that connect, in this order. */
export function Authenticators() {
  const { t } = useLingui();
  const caller = useCaller();
  const status = useList<Status>(
    '/api/v1/authenticator-status',
    {},
    { every: 5_000, enabled: mayOnNode(caller, 'operator') },
  );
  const statusOf = new Map(status.rows?.map((each) => [each.id, each]));
  const types = [
    { value: 'jwt', label: t`JSON Web Tokens` },
    { value: 'http', label: t`HTTP server` },
    { value: 'mysql', label: 'MySQL, MariaDB' },
    { value: 'postgres', label: 'PostgreSQL' },
    { value: 'redis', label: 'Redis' },
    { value: 'password_file', label: t`password file` },
    { value: 'certificate', label: t`client certificates` },
    { value: 'users', label: t`users of this node` },
    { value: 'devices', label: t`devices of this node` },
  ];
  const typeNames = new Map(types.map(({ value, label }) => [value, label]));
  const kind: ObjectKind = {
    path: '/api/v1/authenticators',
    command: 'authenticators',
    idField: 'id',
    newSchema: 'AuthenticatorNew',
    inputSchema: 'AuthenticatorInput',
    newTitle: t`New authenticator`,
    initial: { id: '', type: 'jwt' },
    deletion: (object) => (
      <Trans>
        This removes the authenticator {String(object.id)} from the chain. Clients that only it knows can no longer
        connect.
      </Trans>
    ),
    fields: (isNew): Field[] => [
      ...(isNew ? [{ name: 'id', label: t`Id` }] : []),
      {
        name: 'type',
        label: t`Type`,
        options: types,
      },
      { name: 'order', label: t`Position`, help: t`Lower values are asked first.` },
      { name: 'path', label: t`Path`, help: t`Lines of USER:HASH.`, control: 'mono', isShown: isOf('password_file') },
      { name: 'jwks_url', label: t`Address of the key set (JWKS)`, control: 'mono', isShown: isOf('jwt') },
      {
        name: 'secret',
        label: t`Secret`,
        help: t`For HS256, HS384 and HS512, instead of a key set.`,
        control: 'secret',
        isShown: isOf('jwt'),
      },
      {
        name: 'public_key_file',
        label: t`Public key file`,
        help: t`PEM, instead of a key set.`,
        control: 'mono',
        isShown: isOf('jwt'),
      },
      {
        name: 'from',
        label: t`Field with the token`,
        options: [
          { value: 'password', label: t`password` },
          { value: 'username', label: t`user name` },
        ],
        control: 'select',
        isShown: isOf('jwt'),
      },
      {
        name: 'required_claims',
        label: t`Required claims`,
        help: t`Claims that must have this value; placeholders are allowed.`,
        control: 'pairs',
        isShown: isOf('jwt'),
      },
      { name: 'url', label: t`Address`, control: 'mono', isShown: isOf('http') },
      {
        name: 'method',
        label: t`Method`,
        options: [
          { value: 'post', label: 'POST' },
          { value: 'get', label: 'GET' },
        ],
        control: 'select',
        isShown: isOf('http'),
      },
      { name: 'headers', label: t`Header fields`, control: 'pairs', isShown: isOf('http') },
      { name: 'body', label: t`Body`, control: 'pairs', isShown: isOf('http') },
      {
        name: 'server',
        label: t`Server`,
        placeholder: 'db.example.com:5432',
        control: 'mono',
        isShown: isOf(...databases),
      },
      { name: 'database', label: t`Database`, control: 'text', isShown: isOf(...databases) },
      { name: 'username', label: t`User name`, control: 'text', isShown: isOf(...databases) },
      { name: 'password', label: t`Password`, control: 'secret', isShown: isOf(...databases) },
      { name: 'tls', label: t`TLS`, control: 'switch', isShown: isOf(...databases) },
      { name: 'query', label: t`Query`, control: 'textarea', isShown: isOf(...databases) },
      {
        name: 'from',
        label: t`Name in the certificate`,
        options: [
          { value: 'common_name', label: t`common name` },
          { value: 'alternative_name', label: t`alternative name` },
        ],
        control: 'select',
        isShown: isOf('certificate'),
      },
      {
        name: 'as',
        label: t`The name becomes`,
        options: [
          { value: 'username', label: t`user name` },
          { value: 'client_id', label: t`client id` },
          { value: 'both', label: t`user name and client id` },
        ],
        control: 'select',
        isShown: isOf('certificate'),
      },
      {
        name: 'timeout_ms',
        label: t`Time limit in milliseconds`,
        control: 'number',
        isShown: isOf('jwt', 'http', ...databases),
      },
      {
        name: 'cache_ttl_s',
        label: t`Seconds to keep results`,
        help: t`0: none are kept.`,
        control: 'number',
        isShown: isOf('jwt', 'http', ...databases),
      },
      { name: 'enabled', label: t`Active`, help: '', initially: true },
    ],
  };
  const number = (name: 'accepted' | 'rejected' | 'ignored' | 'errors', header: string): Column<Authenticator> => ({
    id: name,
    header,
    align: 'right',
    sort: (row) => statusOf.get(row.id)?.[name],
    cell: (row) => {
      const value = statusOf.get(row.id)?.[name];
      if (value === undefined) return '–';
      return name === 'errors' && value > 0 ? (
        <span className="state-critical">{formatNumber(value)}</span>
      ) : (
        formatNumber(value)
      );
    },
  });
  const columns: Column<Authenticator>[] = [
    { id: 'type', header: t`Type`, sort: (row) => row.type, cell: (row) => typeNames.get(row.type) ?? row.type },
    {
      id: 'order',
      header: t`Position`,
      align: 'right',
      sort: (row) => row.order ?? 0,
      cell: (row) => row.order ?? 0,
    },
    {
      id: 'state',
      header: t`State`,
      cell: (row) => {
        if (row.enabled === false) {
          return (
            <StateBadge health="unknown">
              <Trans>not active</Trans>
            </StateBadge>
          );
        }
        return statusOf.get(row.id)?.state === 'failing' ? (
          <StateBadge health="critical">
            <Trans>failing</Trans>
          </StateBadge>
        ) : (
          <StateBadge health="good">
            <Trans>working</Trans>
          </StateBadge>
        );
      },
    },
    number('accepted', t`Accepted`),
    number('rejected', t`Rejected`),
    number('ignored', t`Not known`),
    number('errors', t`Errors`),
  ];
  const builtIn = (status.rows ?? []).filter((each) => each.id === 'users' || each.id === 'devices');
  return (
    <>
      <Text size="sm" c="dimmed" mb="sm">
        <Trans>
          The first authenticator that knows a client decides. One that cannot answer rejects the client; a failed
          server never grants access.
        </Trans>
        {builtIn.length > 0 && (
          <>
            {' '}
            {builtIn.map((each) => (
              <span key={each.id}>
                {each.id === 'users' ? (
                  <Trans>
                    Users of this node: {formatNumber(each.accepted)} accepted, {formatNumber(each.rejected)} rejected.
                  </Trans>
                ) : (
                  <Trans>
                    Devices of this node: {formatNumber(each.accepted)} accepted, {formatNumber(each.rejected)}{' '}
                    rejected.
                  </Trans>
                )}{' '}
              </span>
            ))}
          </>
        )}
      </Text>
      <ObjectList<Authenticator>
        kind={kind}
        label={t`Authenticators`}
        columns={columns}
        initialOrder="order"
        mayChange={mayOnNode(caller, 'admin')}
        details={(object) => <State status={statusOf.get(String(object.id))} />}
        empty={{
          title: <Trans>No further authenticators</Trans>,
          text: (
            <Trans>
              The node knows its own users and devices. Add token issuers, servers or databases that know others.
            </Trans>
          ),
        }}
      />
    </>
  );
}

function State({ status }: { status: Status | undefined }) {
  if (!status) return null;
  return (
    <>
      {status.last_error && (
        <Alert color={status.state === 'failing' ? 'red' : 'gray'} variant="light">
          {status.last_error.text} (<Ago ms={status.last_error.at_ms} />)
        </Alert>
      )}
      <Facts
        rows={[
          [<Trans>Accepted</Trans>, formatNumber(status.accepted)],
          [<Trans>Rejected</Trans>, formatNumber(status.rejected)],
          [<Trans>Not known</Trans>, formatNumber(status.ignored)],
          [<Trans>Errors</Trans>, formatNumber(status.errors)],
        ]}
      />
    </>
  );
}
