import { Trans, useLingui } from '@lingui/react/macro';
import { namedChoices } from '../../api/choice-names';
import { useList } from '../../api/objects';
import { useCaller } from '../../api/session';
import type { ObjectKind } from '../../ui/object-editor';
import { useNamespaceNames } from '../relay/endpoint-kind';

export const productsPath = '/api/v1/products';
export const productHref = (id: string) => `/products/${encodeURIComponent(id)}`;

/** The fields of a product, without thing model and alarm rules, which have editors of their own. */
export function useProductKind(): ObjectKind {
  const { t } = useLingui();
  const caller = useCaller();
  const namespaces = useNamespaceNames();
  const isOnNode = caller.role !== null;
  const chains = useList<{ id: string }>('/api/v1/rule-chains', {}, { enabled: isOnNode });
  return {
    path: productsPath,
    command: 'products',
    idField: 'id',
    newSchema: 'ProductNew',
    inputSchema: 'ProductInput',
    newTitle: t`New product`,
    initial: { id: '' },
    deletion: (object) => (
      <Trans>
        This deletes the product {String(object.id)} with its thing model and alarm rules. It is possible only when it
        has no devices.
      </Trans>
    ),
    fields: (isNew) => [
      ...(isNew ? [{ name: 'id', label: t`Id` }] : []),
      { name: 'name', label: t`Name`, help: '' },
      { name: 'description', label: t`Description`, help: '', control: 'textarea' as const },
      ...(isNew && (isOnNode || caller.namespaces.length > 1)
        ? [{ name: 'namespace', label: t`Namespace`, help: t`Who owns the product.`, options: namespaces }]
        : []),
      { name: 'enabled', label: t`Devices may connect`, help: '' },
      {
        name: 'protocols',
        label: t`Protocols`,
        help: t`Topics and payloads that devices may use. None: all.`,
        options: namedChoices('protocols', ['thingsboard', 'jetlinks', 'native', 'relay']),
      },
      {
        name: 'credentials',
        label: t`Credentials`,
        help: t`How devices may log in. None: in every way.`,
        options: namedChoices('credentials', ['token', 'password', 'secure', 'certificate', 'jwt']),
      },
      {
        name: 'unknown_keys',
        label: t`Keys that are not in the thing model`,
        help: '',
        options: namedChoices('unknown_keys', ['keep', 'reject']),
      },
      {
        name: 'parse_numeric_text',
        label: t`Texts that are numbers are stored as numbers`,
        help: t`For keys that are not in the thing model.`,
      },
      { name: 'gateway', label: t`Gateways`, help: t`Devices may have child devices.` },
      {
        name: 'inactivity_timeout_s',
        label: t`Seconds after which a device without a connection is offline`,
        help: '',
      },
      {
        name: 'rule_chain',
        label: t`Rule chain`,
        help: t`None: the root chain.`,
        options: (chains.rows ?? []).map(({ id }) => id),
        isOpen: true,
        isShown: () => isOnNode,
      },
      {
        name: 'mode',
        label: t`Processing`,
        help: '',
        options: namedChoices('mode', ['actor', 'sync']),
      },
      { name: 'storage', label: t`Storage`, help: t`What is stored, for how long, and which sinks receive it.` },
      { name: 'provisioning', label: t`Self-registration`, help: t`mode, key and secret with which devices register.` },
      {
        name: 'secure',
        label: t`Shared JetLinks credential`,
        help: t`secure_id and secure_key of devices without their own.`,
      },
      {
        name: 'secure_max_clock_skew_s',
        label: t`Permitted clock difference in seconds`,
        help: t`Of the time in secureId.`,
      },
    ],
  };
}
