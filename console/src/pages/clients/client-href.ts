/** The address of the page of a client. */
export const clientHref = (clientId: string) => `/clients/${encodeURIComponent(clientId)}`;
